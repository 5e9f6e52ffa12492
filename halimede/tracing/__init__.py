"""Where traces go: files in Triton's form, or a collector of OpenTelemetry; on a thread of its own."""
