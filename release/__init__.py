"""What makes a release: packages, checksums, a bill of materials, the changelog."""
