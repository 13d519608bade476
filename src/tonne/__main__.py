"""``python -m tonne`` is the command `tonne`."""

from tonne.cli import main

if __name__ == "__main__":
    main()
