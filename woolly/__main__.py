"""`python -m woolly` is `woolly`."""

if __name__ == "__main__":
    from woolly.cli.app import main

    main()
