"""What `nodeslab COMMAND` does, a file for each family of commands; `parser` is what they can be told."""
