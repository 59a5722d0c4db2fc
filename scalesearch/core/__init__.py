"""The numerical core: NumPy and SciPy only, importable without TensorFlow, MLflow or Optuna."""
