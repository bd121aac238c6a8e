// Texts that are refused, and what is said of them.
#pragma once

#include <functional>
#include <initializer_list>
#include <string>

#include "golden_table.h"
#include "zero/error.h"

namespace planner {

// The text of the error that `action` throws; empty where it throws none.
inline std::string error_of(const std::function<void()>& action) {
  try {
    action();
    return {};
  } catch (const zero::ConfigError& error) {
    return error.what();
  }
}

inline void expect_in(const std::string& text, std::initializer_list<const char*> words) {
  for (const char* each : words) EXPECT_NE(text.find(each), std::string::npos) << each << " in: " << text;
}

// Every text of the table, with a message that names `source` too.
inline void expect_refused(const std::string& table, const std::string& source,
                           const std::function<void(const std::string&)>& read) {
  for (const golden::Row& row : golden::table(table)) {
    const std::string message = error_of([&] { read(row.text("text")); });
    row.expect_in("message", message);
    EXPECT_NE(message.find(source), std::string::npos) << row.text("text");
  }
}

}  // namespace planner
