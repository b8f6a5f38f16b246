"""`python -m unskew` is `unskew`."""

from unskew.cli import main

main()
