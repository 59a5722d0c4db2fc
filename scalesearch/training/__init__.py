"""Everything TensorFlow: trains a workload on one or several replicas and measures it."""
