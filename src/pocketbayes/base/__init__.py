"""What every other package builds on: errors, files written whole, process groups, progress."""
