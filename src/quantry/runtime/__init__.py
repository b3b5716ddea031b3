"""onnxruntime sessions, threads, devices and progress bars."""
