"""The rules of batch size optimization: pure values and functions, no input or output, no clock, no logging."""
