"""libcuda, the driver: its C declarations and the calls on them."""
