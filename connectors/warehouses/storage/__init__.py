"""Where do the files of a warehouse lie? On a local disk, or in an object store."""
