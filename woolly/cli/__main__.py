"""`python -m woolly.cli` is `woolly`."""

from woolly.cli.app import main

__all__: list[str] = []

if __name__ == "__main__":
    main()
