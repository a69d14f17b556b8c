"""Hardware that is not there, faked at its outermost boundary."""
