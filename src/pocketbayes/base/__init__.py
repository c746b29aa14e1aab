"""Parts that every other package builds on: errors, atomic files, process groups, progress."""
