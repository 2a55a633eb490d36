"""What ``feeder status`` and ``feeder top`` draw from a host's report, for any terminal.

    report       host_view: rates merged over node processes   report_json: the same as JSON
    drawing      figures, glyphs: numbers and bars as text     sheet: lines of a width
                 host_tables, worker_grid: lists               status_screen, top_screen: all of it
    live         frame: a height, scrolling                    live_state: keys, silence
                 terminal: taken over, given back              live: the loop     console

May import: errors, metrics, diagnosis.
"""
