"""The JSON form of commands, replies, events and stored states, and its versioned envelope."""
