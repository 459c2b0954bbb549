// Does a little of what ordinary C++ programs do, in turn: containers, streams, text, regular expressions, sorting, exceptions.
#include <algorithm>
#include <charconv>
#include <deque>
#include <functional>
#include <iomanip>
#include <iostream>
#include <list>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <regex>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

namespace shop {

static volatile std::size_t sink;

struct Order {
	int id;
	std::string name;
	double price;
	std::vector<std::string> lines;
	bool operator<(const Order &o) const { return name < o.name; }
};

static std::vector<Order> orders(int n)
{
	std::mt19937 random(n);
	std::uniform_real_distribution<double> prices(1, 100);
	std::vector<Order> all;
	for (int i = 0; i < n; i++) {
		Order o{i, "order-" + std::to_string(i * 7919 % 1009), prices(random), {}};
		for (int j = 0; j < i % 5; j++)
			o.lines.push_back(std::string(j + 3, 'a' + j) + "-" + std::to_string(j * i));
		all.push_back(std::move(o));
	}
	return all;
}

static std::size_t streams(const std::vector<Order> &all)
{
	std::ostringstream out;
	for (const auto &o : all)
		out << std::setw(12) << std::left << o.name << std::hex << o.id << std::dec << ' ' << std::fixed
		    << std::setprecision(3) << o.price << ' ' << std::quoted(o.name) << '\n';
	std::istringstream in(out.str());
	std::string name, rest;
	std::size_t n = 0;
	for (int number; in >> name >> std::hex >> number; n += number)
		std::getline(in, rest);
	return n + out.str().size();
}

static std::size_t containers(const std::vector<Order> &all)
{
	std::map<std::string, std::list<int>> tree;
	std::unordered_map<std::string, double> hash;
	std::set<std::pair<double, int>> by_price;
	std::deque<std::shared_ptr<Order>> queue;
	for (const auto &o : all) {
		tree[o.name].push_front(o.id);
		hash[o.name] += o.price;
		by_price.emplace(o.price, o.id);
		queue.push_back(std::make_shared<Order>(o));
		if (queue.size() > 50)
			queue.pop_front();
	}
	for (int i = 0; i < 1009; i += 3)
		tree.erase("order-" + std::to_string(i)), hash.erase("order-" + std::to_string(i));
	return std::accumulate(tree.begin(), tree.end(), by_price.size(),
			       [](std::size_t n, const auto &e) { return n + e.second.size() + e.first.size(); });
}

static std::size_t text(const std::vector<Order> &all)
{
	static const std::regex words("([a-z]+)-([0-9]{1,4})");
	std::size_t n = 0;
	for (std::size_t i = 0; i < all.size(); i += 4) {
		std::string s = std::regex_replace(all[i].name, words, "$2:$1");
		std::reverse(s.begin(), s.end());
		std::transform(s.begin(), s.end(), s.begin(), ::toupper);
		n += s.find_first_not_of("0123456789") + s.size();
	}
	char buf[64];
	for (const auto &o : all) {
		auto end = std::to_chars(buf, buf + sizeof buf, o.price);
		double back = 0;
		std::from_chars(buf, end.ptr, back);
		n += std::stod(std::string(buf, end.ptr)) == back;
	}
	return n;
}

static std::size_t sorted(std::vector<Order> all)
{
	std::sort(all.begin(), all.end());
	std::stable_sort(all.begin(), all.end(), [](const Order &a, const Order &b) { return a.price < b.price; });
	std::nth_element(all.begin(), all.begin() + all.size() / 2, all.end(), [](const Order &a, const Order &b) { return a.lines.size() < b.lines.size(); });
	std::partial_sort(all.begin(), all.begin() + 10, all.end(), [](const Order &a, const Order &b) { return a.id > b.id; });
	return all[3].id;
}

static std::size_t exceptions(int depth)
{
	std::variant<int, std::string> v = depth;
	try {
		if (depth > 0)
			return exceptions(depth - 1) + 1;
		v = std::string("thrown");
		throw std::runtime_error(std::get<std::string>(v));
	} catch (const std::invalid_argument &e) {
		return 0;
	} catch (const std::exception &e) {
		if (depth < 3)
			throw;
		return std::string(e.what()).size();
	}
}

static void work(int round)
{
	auto all = orders(300 + round % 40);
	std::function<std::size_t()> parts[] = {
		[&] { return streams(all); }, [&] { return containers(all); }, [&] { return text(all); },
		[&] { return sorted(all); },  [] { return exceptions(6); },
	};
	for (auto &part : parts)
		sink = sink + part();
}

} // namespace shop

int main()
{
	for (int round = 0;; round++) {
		shop::work(round);
		if (!round)
			std::cout << "ready" << std::endl;
	}
}
