"""The image, built and run as its Dockerfile says."""
