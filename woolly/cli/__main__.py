"""`python -m woolly.cli` is `woolly`."""

from woolly.cli import main

if __name__ == "__main__":
    main()
