// Package account knows who commands and file operations act as: it finds
// users in /etc/passwd and /etc/group at the moment of use, resolves paths
// against their homes and lends their rights to single operations.
package account
