"""`python -m scalesearch`."""

from scalesearch.cli import main

if __name__ == "__main__":
    main()
