"""The Spark sink without a JVM."""
