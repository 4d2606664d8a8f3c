"""``python -m ressl``, which is also what torchrun starts."""

from ressl.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
