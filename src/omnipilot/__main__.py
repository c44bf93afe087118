"""``python -m omnipilot``."""

from omnipilot.cli import main

if __name__ == "__main__":
    main()
