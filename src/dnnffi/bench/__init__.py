"""The fastrnns suite: recurrent networks of dnnffi and of its peers, timed side by side."""
