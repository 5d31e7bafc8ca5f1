"""Makes `python -m timers` the same as the `timers` command."""

from timers.cli import main

if __name__ == "__main__":
    main()
