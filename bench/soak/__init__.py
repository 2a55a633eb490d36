"""Hours of streaming: what grows?

May import:
"""
