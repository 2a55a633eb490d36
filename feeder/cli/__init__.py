"""One module per subcommand of ``feeder``; each has ``add_parser(subparsers)`` and ``run(args)``.

Modules here import only the standard library and ``feeder.errors`` at the top; what a command needs
is imported inside ``run``, so that ``feeder --help`` and the other commands stay quick.
"""
