"""scalesearch: the batch size, learning rate and decay boundaries that reach a target fastest."""

__version__ = "0.1.0"
