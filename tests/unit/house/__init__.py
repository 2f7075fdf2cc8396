"""The rules that the whole repository keeps: its layout, its documents, its image, its manifests."""
