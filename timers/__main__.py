"""Makes `python -m timers` the same as the `timers` command."""

from timers_processors.command import main

if __name__ == "__main__":
    main()
