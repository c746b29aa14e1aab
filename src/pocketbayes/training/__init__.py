"""`fit`: the stages of a method, the training loop, checkpoints and their resumption."""
