"""Tests of the server options."""
