"""The fastrnns suite: networks of dnnffi and of its peers, timed side by side."""
