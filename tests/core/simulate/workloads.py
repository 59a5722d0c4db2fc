"""Small simulated workloads."""

from __future__ import annotations

from scalesearch.core.simulate.workload import GradientNoise, RunNoise, SimulatedWorkload, Spectrum

QUIET = RunNoise(speed=0.0, level=0.0, evaluation=0.0)
SMALL = SimulatedWorkload(
    target=0.3,
    spectrum=Spectrum(dimension=100, modes=30),
    gradient_noise=GradientNoise(variance=5.0),
    run_noise=QUIET,
    train_examples=4096,
)
