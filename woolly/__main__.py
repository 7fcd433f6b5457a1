"""Entry point of `python -m woolly`."""

if __name__ == "__main__":
    from woolly.cli.app import main

    main()
