"""What ``feeder status`` and ``feeder top`` draw from a host's report, for any terminal.

    drawing      sheet: lines of a width, bars and curves      tables: lists
                 status_screen, top_screen: all of it
    live         live: the loop, the keys, the terminal        console: standard output, JSON

May import: errors, metrics, diagnosis.
"""
