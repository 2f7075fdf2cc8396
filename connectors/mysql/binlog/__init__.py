"""What does an event of the binary log say? Bytes in, frozen values out; nothing here opens a connection."""
