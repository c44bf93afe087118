"""From advice to a running server and back: scripts, jobs, their rows, and benchmark grids."""
