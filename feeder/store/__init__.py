"""Objects in S3, Google Cloud Storage, Azure and web servers: listed, and read by ranges.

May import: errors, installation, process.
"""
