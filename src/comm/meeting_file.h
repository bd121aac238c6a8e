// A file in a folder that all users write to, by which rank 0 tells the other ranks of its host where it listens.
#pragma once

#include <string>

namespace zero {

// Writes the port and this process into `file`, all at once. Follows no link and writes to nothing that was there.
// Throws CommError.
void publish_port(const std::string& file, int port);

// The port in a file of this user's that a living process wrote; 0: there is none yet.
int read_port(const std::string& file);

}  // namespace zero
