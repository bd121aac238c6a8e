// Safetensors files on disk, one or several with an index.
#include "persist/safetensors_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "persist/safetensors_folder.h"
#include "zero/error.h"

namespace zero::test::safetensors_file_test {

namespace fs = std::filesystem;
using namespace std::string_literals;

class SafetensorsDisk : public testing::Test {
 protected:
  SafetensorsDisk() { ::mkdtemp(folder_.data()); }
  ~SafetensorsDisk() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  std::string write(const std::string& name, const std::string& bytes) const {
    fs::create_directories(fs::path(path(name)).parent_path());
    std::ofstream(path(name), std::ios::binary) << bytes;
    return path(name);
  }
  // Of one tensor a name, of as many bytes as the name has, which are the name.
  std::string write_names(const std::string& file, const std::vector<std::string>& names) const {
    SafetensorsHeader header;
    std::string data;
    for (const std::string& name : names) {
      header.tensors.push_back({name, TensorType::u8, {std::ssize(name)}});
      data += name;
    }
    return write(file, write_safetensors_header(header) + data);
  }
  void write_index(const std::string& map) const {
    write("model.safetensors.index.json", R"({"metadata":{"total_size":5,"else":[{},null]},"weight_map":)" + map + "}");
  }
  std::string fault_of(const std::function<void()>& action) const {
    try {
      action();
      return {};
    } catch (const CheckpointError& error) {
      return error.what();
    }
  }
  void expect_fault(const std::string& file, const std::string& says) const {
    const std::string error = fault_of([&] { SafetensorsFolder{file}; });
    EXPECT_NE(error.find(says), std::string::npos) << error << "\n  instead of " << says;
  }

  std::string folder_ = (fs::temp_directory_path() / "zero_safetensors.XXXXXX").string();
};

std::string copied(const SafetensorsFile& file, const TensorEntry& tensor, std::int64_t begin, std::int64_t end) {
  std::string bytes(static_cast<std::size_t>(end - begin), '\0');
  file.read(tensor, begin, bytes);
  return bytes;
}

TEST_F(SafetensorsDisk, HaveTensorsByName) {
  const SafetensorsFile file(write_names("a.safetensors", {"weight", "", "bias", "größe"}));
  EXPECT_EQ(file.path(), path("a.safetensors"));
  EXPECT_EQ(file.entries().size(), 4u);
  for (const char* name : {"weight", "", "bias", "größe"}) {
    const TensorEntry* const entry = file.find(name);
    ASSERT_NE(entry, nullptr) << name;
    EXPECT_EQ(copied(file, *entry, 0, entry->bytes()), name);
  }
  for (const char* name : {"weigh", "weights", "c", "~"}) EXPECT_EQ(file.find(name), nullptr);
}

TEST_F(SafetensorsDisk, HaveRangesOfTensors) {
  const SafetensorsFile file(write_names("a.safetensors", {"before", "weight", "behind"}));
  const TensorEntry& weight = *file.find("weight");
  EXPECT_EQ(copied(file, weight, 2, 5), "igh");
  EXPECT_EQ(copied(file, weight, 6, 6), "");
  const std::int64_t most = std::numeric_limits<std::int64_t>::max();
  const std::pair<std::int64_t, std::int64_t> outside[] = {{-1, 2}, {0, 7}, {7, 7}, {most - 1, most}, {most, most}};
  for (const auto& [begin, end] : outside) EXPECT_THROW(copied(file, weight, begin, end), StateError) << begin;
  std::vector<char> to(2);
  for (const std::int64_t begin : {std::int64_t{-1}, std::int64_t{5}, std::int64_t{7}, most, most - 1})
    EXPECT_THROW(file.read(weight, begin, to), StateError) << begin;
  TensorEntry other = weight;
  other.end = most;
  for (const std::int64_t begin : {0, 100}) EXPECT_THROW(file.read(other, begin, to), StateError) << "another file's";
}

TEST_F(SafetensorsDisk, MoveWithTheirBytes) {
  std::vector<SafetensorsFile> files;
  files.emplace_back(write_names("a.safetensors", {"weight"}));
  files.emplace_back(write_names("b.safetensors", {"bias"}));
  EXPECT_EQ(copied(files[0], *files[0].find("weight"), 0, 6), "weight");
  EXPECT_EQ(copied(files[1], *files[1].find("bias"), 0, 4), "bias");
}

TEST_F(SafetensorsDisk, WhatIsNoneIsNamed) {
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  fs::create_directory(path("folder"));
  expect_fault(path("pipe"), "cannot read '" + path("pipe") + "': it is a pipe");
  expect_fault("/dev/zero", "it is a device");
  expect_fault(path("missing"), "cannot read '" + path("missing") + "': No such file");
  EXPECT_NE(fault_of([&] { SafetensorsFile(path("folder")); }).find("it is a folder"), std::string::npos);
  expect_fault(write("empty", ""), path("empty") + " ends after 0 bytes");
  expect_fault(write("text", "{\"not\": \"safetensors\"}"), path("text") + " begins with a header of");
}

TEST_F(SafetensorsDisk, ThatBecomeShorterAreAnErrorToRead) {
  const SafetensorsFile file(write_names("a.safetensors", {"weight"}));
  fs::resize_file(file.path(), fs::file_size(file.path()) - 2);
  const TensorEntry& weight = *file.find("weight");
  EXPECT_EQ(copied(file, weight, 0, 4), "weig");
  EXPECT_NE(fault_of([&] { copied(file, weight, 0, 6); }).find("it ends before byte"), std::string::npos);
}

TEST_F(SafetensorsDisk, ThatAreReplacedStayWhatTheyWere) {
  const SafetensorsFile file(write_names("a.safetensors", {"weight"}));
  fs::rename(write_names("b.safetensors", {"bias"}), path("a.safetensors"));
  EXPECT_EQ(copied(file, *file.find("weight"), 0, 6), "weight");
  fs::remove(path("a.safetensors"));
  EXPECT_EQ(copied(file, *file.find("weight"), 0, 6), "weight");
}

std::vector<std::string> names_of(const SafetensorsFolder& folder) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : folder.tensors()) {
    EXPECT_EQ(copied(*tensor.file, *tensor.entry, 0, tensor.entry->bytes()), name);
    names.push_back(name);
  }
  return names;
}

TEST_F(SafetensorsDisk, OneIsAllTensorsOfAFolder) {
  write_names("model.safetensors", {"weight", "bias"});
  write_names("other.safetensors", {"other"});
  write_index(R"({"other":"other.safetensors"})");
  const std::vector<std::string> both{"bias", "weight"};
  EXPECT_EQ(names_of(SafetensorsFolder(folder_)), both) << "as others choose";
  EXPECT_EQ(names_of(SafetensorsFolder(path("model.safetensors"))), both);
}

TEST_F(SafetensorsDisk, SeveralAreAllTensorsOfAFolder) {
  write_names("one.safetensors", {"a", "b", "hidden"});
  write_names("sub/two.safetensors", {"c", "b"});
  write_index(R"({"a":"one.safetensors","c":"sub/two.safetensors","b":"./sub/two.safetensors"})");
  for (const std::string& given : {folder_, folder_ + "/", path("model.safetensors.index.json")}) {
    const SafetensorsFolder folder(given);
    EXPECT_EQ(names_of(folder), (std::vector<std::string>{"a", "b", "c"}));
    EXPECT_EQ(folder.tensors().at("b").file->path(), path("./sub/two.safetensors"));
  }
}

TEST_F(SafetensorsDisk, LinksAreFollowed) {
  write_names("blobs/1", {"a"});
  fs::create_directory(path("snapshot"));
  fs::create_symlink("../blobs/1", path("snapshot/model.safetensors"));
  EXPECT_EQ(names_of(SafetensorsFolder(path("snapshot"))), std::vector<std::string>{"a"});
}

TEST_F(SafetensorsDisk, AnIndexIsReadAsItWasWritten) {
  const SafetensorsFiles files{{"größe", "1.safetensors"}, {"a\"b", "2.safetensors"}};
  const std::string index = write_safetensors_index(files, 7);
  EXPECT_EQ(
      index,
      "{\n  \"metadata\": {\n    \"total_size\": 7\n  },\n  \"weight_map\": {\n    \"a\\\"b\": \"2.safetensors\",\n"
      "    \"größe\": \"1.safetensors\"\n  }\n}\n");
  EXPECT_EQ(read_safetensors_index(index, "x"), files);
  EXPECT_EQ(read_safetensors_index(write_safetensors_index({}, 0), "x"), SafetensorsFiles());
  EXPECT_NE(fault_of([] { write_safetensors_index({{"\xff", "a"}}, 0); }).find("not UTF-8"), std::string::npos);
}

TEST_F(SafetensorsDisk, AnIndexThatDoesNotFitIsNamed) {
  expect_fault(folder_, "has neither model.safetensors nor model.safetensors.index.json");
  write_names("one.safetensors", {"a"});
  write_index(R"({"a":"one.safetensors","b":"one.safetensors"})");
  expect_fault(folder_, "model.safetensors.index.json: tensor \"b\" should be in \"one.safetensors\", but is not");
  write_index(R"({"a":"gone.safetensors"})");
  expect_fault(folder_, "cannot read '" + path("gone.safetensors") + "'");
  write("two.safetensors", "{}");
  write_index(R"({"a":"two.safetensors"})");
  expect_fault(folder_, path("two.safetensors") + " ends after 2 bytes");
}

TEST_F(SafetensorsDisk, AnIndexNamesNothingOutsideOfItsFolder) {
  write_names("one.safetensors", {"a"});
  write_names("folder/one.safetensors", {"a"});
  for (const std::string& file : {"../one.safetensors"s, "x/../../one.safetensors"s, "folder/../one.safetensors"s,
                                  path("one.safetensors"), ".."s, "."s, "folder/"s, ""s, "one.safetensors\\u0000x"s}) {
    write("folder/model.safetensors.index.json", R"({"weight_map":{"a":")" + file + "\"}}");
    expect_fault(path("folder"), "which is no file of the index's folder");
  }
}

TEST_F(SafetensorsDisk, AnIndexThatIsNoneIsAnError) {
  std::string deep;
  for (int i = 0; i < 1'000'000; ++i) deep += "[";
  const std::pair<std::string, const char*> cases[] = {
      {"", "x: is not JSON, at byte 0"},
      {"{\"weight_map\":{}}\0{}"s, "is not JSON, at byte 17"},
      {"{\"weight_map\":{}}{}", "is not JSON, at byte 17"},
      {"{\"weight_map\":{\"\xff\":\"a\"}}", "is not JSON, at byte 16"},
      {"[]", "is a list, not an object"},
      {"1", "is a number, not an object"},
      {"{}", "has no weight_map"},
      {R"({"metadata":{"weight_map":{}}})", "has no weight_map"},
      {R"({"weight_map":[]})", "weight_map is a list, not an object"},
      {R"({"weight_map":"a"})", "weight_map is a string, not an object"},
      {R"({"weight_map":{"a":1}})", "the file of tensor \"a\" is a number, not a string"},
      {R"({"weight_map":{"a":{}}})", "the file of tensor \"a\" is an object, not a string"},
      {R"({"weight_map":{"a":"1","a":"1"}})", "has the tensor \"a\" twice"},
      {R"({"weight_map":{},"weight_map":{}})", "has weight_map twice"},
      {"{\"metadata\":" + deep, "is nested deeper than 64 levels"},
  };
  for (const auto& wrong : cases) {
    const std::string error = fault_of([&] { read_safetensors_index(wrong.first, "x"); });
    EXPECT_NE(error.find(wrong.second), std::string::npos) << error << "\n  instead of " << wrong.second;
  }
  EXPECT_EQ(read_safetensors_index(R"({"a":[{"b":[]},1,-1,null,true,"x",1.5],"weight_map":{"a":"f"},"c":1})", "x"),
            (SafetensorsFiles{{"a", "f"}}));
}

}  // namespace zero::test::safetensors_file_test
