"""Clients of HTTP/1.1 and gRPC that cost little: one thread, one poll, no object per request. They know bytes and
times, and nothing of models.
"""
