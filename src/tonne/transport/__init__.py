"""The only importer of libcurl: ranges, credentials, redirects, upload sessions."""
