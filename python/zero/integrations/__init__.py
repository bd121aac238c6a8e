"""The engine inside other libraries' training loops, each in a module of its library's name."""
