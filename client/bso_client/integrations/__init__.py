"""Where other libraries meet the optimizer. Each module needs its library; importing the package needs none."""
