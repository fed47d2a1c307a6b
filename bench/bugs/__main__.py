"""``python -m bench.bugs``."""

from bench.bugs.runner import main

if __name__ == "__main__":
    main()
