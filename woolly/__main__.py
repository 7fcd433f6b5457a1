"""`python -m woolly` is `woolly`."""

__all__: list[str] = []

if __name__ == "__main__":
    from woolly.cli.app import main

    main()
