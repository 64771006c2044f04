"""`python -m nodeslab` is `nodeslab`."""

from nodeslab.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
